"""Problem sets, tables of rows and tokenizers."""
