"""Clean-up: characters, sentences, spans and quality of a document; repeats among documents."""
