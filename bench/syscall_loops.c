/* Repeat one kind of system call and print nanoseconds per call, without the start of the program.
 * `-f` first installs the smallest possible filter, to measure the cost of any filter. */
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turned = PTHREAD_COND_INITIALIZER;
static int turn;

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1e9 + at.tv_nsec;
}

static void any_filter(void)
{
    struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = { 1, &allow };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        exit(3);
}

/* Two threads pass a token to each other. Each pass is a futex wait and a futex wake. */
static void hand_over(int mine, long count)
{
    pthread_mutex_lock(&lock);
    for (long i = 0; i < count; i++) {
        while (turn != mine)
            pthread_cond_wait(&turned, &lock);
        turn = !mine;
        pthread_cond_signal(&turned);
    }
    pthread_mutex_unlock(&lock);
}

static void *other_thread(void *count)
{
    hand_over(1, *(long *)count);
    return NULL;
}

static void calls(const char *kind, long count)
{
    char page[4096];
    struct stat seen;
    int zero = open("/dev/zero", O_RDONLY);
    if (zero < 0)
        exit(3);
    if (!strcmp(kind, "getppid"))
        for (long i = 0; i < count; i++)
            syscall(SYS_getppid);
    else if (!strcmp(kind, "read"))
        for (long i = 0; i < count; i++) {
            if (read(zero, page, sizeof page) < 0)
                exit(3);
        }
    else if (!strcmp(kind, "stat"))
        for (long i = 0; i < count; i++) {
            if (stat("/usr/bin/env", &seen))
                exit(3);
        }
    else if (!strcmp(kind, "open"))
        for (long i = 0; i < count; i++)
            close(open("/usr/bin/env", O_RDONLY));
    else if (!strcmp(kind, "threads")) {
        pthread_t other;
        if (pthread_create(&other, NULL, other_thread, &count))
            exit(3);
        hand_over(0, count);
        pthread_join(other, NULL);
    } else
        exit(2);
}

int main(int argc, char **argv)
{
    if (argc > 3 && !strcmp(argv[3], "-f"))
        any_filter();
    long count = argc > 2 ? atol(argv[2]) : 0;
    if (count < 1)
        return 2;
    double started = now();
    calls(argv[1], count);
    printf("%f\n", (now() - started) / count);
    return 0;
}
