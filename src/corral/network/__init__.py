"""The network allowlist, without the sandbox around it.

rules        entries of `network.allow` -> what is allowed
addresses    IP addresses as bytes
guard        addresses that are never dialled
names, dns   what the target is told about names, and how
tls, proxy   the name in a ClientHello; the host's own proxy
denials      what was denied: the report's rows, the audit file
gateway      all of it on sockets: resolver, connection, lookups, dial, splice, on one epoll
outbound     the same checks for proxies with threads: http_request, http_connection, race
http_door    such a proxy on one loopback port, for a wall that leaves nothing else open
inlets, tap  ports of the target for the host; what it tried where nobody listens
"""
