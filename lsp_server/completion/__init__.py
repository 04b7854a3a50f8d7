"""From a cursor in a document to a suggestion: one pipeline, no editor types."""
