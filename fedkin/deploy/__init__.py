"""Real federations on Flower: the same methods and the same loop, with the clients on machines of their own.

    settings.toml ──> terms ──> server: the loop of `fedkin.simulate`, with `Remote` in place of an engine
                                   │ letters (safetensors), carried by Flower
                                client: a `Worker` with this client's samples alone

What a client keeps to itself is on its own disk. In its place the server holds a version, the name of what it was
after the last work that the server accepted, and every letter carries it.
"""
