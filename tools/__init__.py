"""What the project is looked after with."""
