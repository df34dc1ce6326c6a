"""The bus in one process, without a server: the same promises, for tests and simulations."""
