/* Print the layout of the messages as C structs, because a compiler decides offsets and padding. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct header { uint32_t type; uint32_t size; uint64_t request; };
struct ping { struct header h; uint32_t version; uint64_t time; };
struct session { struct header h; uint64_t token; uint32_t root; uint16_t path[520]; };
struct unregister { struct header h; uint64_t token; };
struct config { struct header h; uint32_t mode, timeout, failures, entries, ttl; };
struct exclude { struct header h; uint32_t process; };
struct file {
    struct header h; uint64_t token; uint32_t process, thread, operation, disposition, access;
    uint16_t path[520]; uint16_t destination[520];
};
struct registry {
    struct header h; uint64_t token; uint32_t process, thread, operation, type, size;
    uint16_t key[520]; uint16_t value[256];
};
struct response { struct header h; uint32_t decision, ttl; };
struct message_header { uint32_t room; uint64_t id; };
struct reply_header { int32_t status; uint64_t id; };

#define SIZE(s) printf("%s %zu\n", #s, sizeof(struct s))
#define AT(s, f) printf("%s.%s %zu\n", #s, #f, offsetof(struct s, f))

int main(void) {
    SIZE(header); SIZE(ping); SIZE(session); SIZE(unregister); SIZE(config);
    SIZE(exclude); SIZE(file); SIZE(registry); SIZE(response); SIZE(message_header); SIZE(reply_header);
    AT(ping, version); AT(ping, time);
    AT(session, token); AT(session, root); AT(session, path);
    AT(config, mode); AT(config, timeout); AT(config, failures); AT(config, entries); AT(config, ttl);
    AT(file, token); AT(file, process); AT(file, thread); AT(file, operation); AT(file, disposition);
    AT(file, access); AT(file, path); AT(file, destination);
    AT(registry, token); AT(registry, process); AT(registry, thread); AT(registry, operation);
    AT(registry, type); AT(registry, size); AT(registry, key); AT(registry, value);
    AT(response, decision); AT(response, ttl);
    AT(message_header, id); AT(reply_header, id);
    return 0;
}
