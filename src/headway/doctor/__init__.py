"""May this conclusion be drawn at all?"""
