/* What profiling.cupti asks of libcupti: a subscriber that is called for one launch of each kind, and for calls that launch nothing. */
#include <stddef.h>
#include <stdint.h>

typedef struct {
    int callbackSite;
    const char *functionName;
    const void *functionParams;
    void *functionReturnValue;
    const char *symbolName;
    void *context;
    uint32_t contextUid;
    uint64_t *correlationData;
    uint32_t correlationId;
} Data;
typedef void (*Callback)(void *, int, uint32_t, const Data *);

static Callback subscriber;
static int refuses;
int enabled_domains;

int cuptiSubscribe(void **handle, Callback callback, void *user) {
    (void)user;
    *handle = &subscriber;
    subscriber = callback;
    return refuses;
}
int cuptiEnableDomain(uint32_t on, void *handle, int domain) {
    (void)handle;
    enabled_domains += on ? domain : 0;
    return 0;
}
int cuptiUnsubscribe(void *handle) {
    (void)handle;
    subscriber = NULL;
    return 0;
}
void refuse(int status) { refuses = status; }
void call(int domain, const char *function, const char *symbol) {
    for (int site = 0; site < 2; ++site) {
        Data data = {.callbackSite = site, .functionName = function, .symbolName = symbol, .correlationId = 9};
        if (subscriber) subscriber(NULL, domain, 307, &data);
    }
}
