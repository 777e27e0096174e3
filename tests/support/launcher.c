// Executes a program in a session of its own, with no signal ignored, to be killed with the thread that started it. What
// std does only between fork(2) and exec(3), in a copy of the test process and of its page tables.

#define _GNU_SOURCE
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int argc, char **argv) {
    // nohup(1) ignores HUP, and a shell without job control INT and QUIT for its background jobs.
    const int reset[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
    // This fails where the caller has begun a session already, for a terminal of its own.
    setsid();
    for (unsigned i = 0; i < sizeof reset / sizeof *reset; i++) {
        signal(reset[i], SIG_DFL);
    }
    if (argc < 2 || prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) {
        return 126;
    }
    execvp(argv[1], argv + 1);
    return 127;
}
