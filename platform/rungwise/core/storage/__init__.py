"""Local folders and object stores behind one interface, and the files that users provide.

Code outside uses `folder.Folder` for what is built and `source_files` for what is read.
"""
