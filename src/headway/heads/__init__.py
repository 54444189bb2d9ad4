"""Question one: which attention heads does a model need, and which can go together?"""
