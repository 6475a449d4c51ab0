"""``quire serve``: the engine behind OpenAI's HTTP API."""
