"""Python steps: what is registered, what rows look like to a step, and how its result finds its way to the target."""
