"""What would make a program fit."""
