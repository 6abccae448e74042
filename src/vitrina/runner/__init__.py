"""The data plane: manager, dispatcher, executor. Knows nothing about HTTP."""
