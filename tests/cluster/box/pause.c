// The first process of every pod: holds the pod's namespaces, reaps orphans, ends on SIGINT or SIGTERM. Built statically into the pause image.
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void finish(int number) { _exit(number == SIGTERM || number == SIGINT ? 0 : 1); }
static void reap(int number) {
  (void)number;
  while (waitpid(-1, NULL, WNOHANG) > 0) {
  }
}

int main(void) {
  struct sigaction on_end = {.sa_handler = finish};
  struct sigaction on_child = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
  if (sigaction(SIGINT, &on_end, NULL) || sigaction(SIGTERM, &on_end, NULL) || sigaction(SIGCHLD, &on_child, NULL)) return 2;
  for (;;) pause();
}
