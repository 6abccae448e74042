"""One folder for each system that rows come from or go to; none imports another."""
