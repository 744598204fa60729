"""Local folders and object stores behind one interface, and the files that users provide."""
