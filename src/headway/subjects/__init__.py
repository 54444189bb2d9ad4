"""What can be studied."""
