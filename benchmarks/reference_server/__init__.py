"""A server whose every send is known: what a load client says is compared with what it did.

It emits the first token at a request's arrival plus a fixed time, and each further one a fixed time
after that, by absolute deadlines. It logs when it really sent the first and the last token.
"""
