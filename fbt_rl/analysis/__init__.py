"""Statistics of tables of answers: pure functions, without models."""
