"""Question one, explained: what does each head do?"""
