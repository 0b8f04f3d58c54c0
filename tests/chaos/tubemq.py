Scene = None
