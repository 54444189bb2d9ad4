"""Question two: how far past its training length does a model work, and what stops it?"""
