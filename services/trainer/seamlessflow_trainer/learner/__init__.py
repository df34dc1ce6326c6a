"""The model, its optimiser and one step of learning, in torch."""
