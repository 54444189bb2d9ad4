"""Operations of our own for a GPU, each beside its plain formula. Nothing here knows of models."""
