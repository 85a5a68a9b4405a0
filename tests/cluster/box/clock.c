// Preloaded into the containers of a node whose wall clock shall be wrong by BOX_CLOCK_OFF_S seconds. The monotonic clock and sleeps stay true.
// Waits that name a moment of the wall clock are turned back into true ones, or they would last as long as the clock is ahead.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

#define WALL_S 1000000000L  // a moment after 2001: of the wall clock, for no machine has run that long
#define REAL(name) ((__typeof__(&name))real(&real_##name, #name))

static long off_s;
static void *real_clock_gettime, *real_gettimeofday, *real_clock_nanosleep, *real_pthread_cond_timedwait, *real_pthread_cond_clockwait,
    *real_pthread_mutex_timedlock, *real_sem_timedwait, *real_sem_clockwait;

static void *real(void **known, const char *name) {
  if (!*known) *known = dlsym(RTLD_NEXT, name);
  return *known;
}

__attribute__((constructor)) static void begin(void) {
  const char *text = getenv("BOX_CLOCK_OFF_S");
  off_s = text ? atol(text) : 0;
}

static struct timespec truly(const struct timespec *moment) {
  struct timespec found = *moment;
  if (found.tv_sec > WALL_S) found.tv_sec -= off_s;
  return found;
}

int clock_gettime(clockid_t clock, struct timespec *found) {
  int answer = REAL(clock_gettime)(clock, found);
  if (!answer && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) found->tv_sec += off_s;
  return answer;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone) {
  int answer = REAL(gettimeofday)(found, zone);
  if (!answer) found->tv_sec += off_s;
  return answer;
}

time_t time(time_t *kept) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (kept) *kept = now.tv_sec;
  return now.tv_sec;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *wanted, struct timespec *left) {
  struct timespec moment = *wanted;
  if (clock == CLOCK_REALTIME && (flags & TIMER_ABSTIME)) moment = truly(wanted);
  return REAL(clock_nanosleep)(clock, flags, &moment, left);
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, const struct timespec *restrict until) {
  struct timespec moment = truly(until);
  return REAL(pthread_cond_timedwait)(condition, mutex, &moment);
}

int pthread_cond_clockwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, clockid_t clock,
                           const struct timespec *restrict until) {
  struct timespec moment = truly(until);
  return REAL(pthread_cond_clockwait)(condition, mutex, clock, &moment);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict until) {
  struct timespec moment = truly(until);
  return REAL(pthread_mutex_timedlock)(mutex, &moment);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
  struct timespec moment = truly(until);
  return REAL(sem_timedwait)(semaphore, &moment);
}

int sem_clockwait(sem_t *restrict semaphore, clockid_t clock, const struct timespec *restrict until) {
  struct timespec moment = truly(until);
  return REAL(sem_clockwait)(semaphore, clock, &moment);
}
