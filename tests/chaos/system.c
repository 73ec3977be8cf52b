/* A preloaded library (LD_PRELOAD) that injects faults. Each file in $CHAOS has the value of one fault:
   ``clock`` the offset of the wall clock in seconds, ``slow`` the milliseconds that each write and fsync of a regular
   file in $CHAOS_DISK takes; a nonzero ``full`` makes these fail with ENOSPC. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static long fault_value(const char *name) {
  const char *folder = getenv("CHAOS");
  char path[4096];
  long value = 0;
  if (!folder) return 0;
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  if (fscanf(file, "%ld", &value) != 1) value = 0;
  fclose(file);
  return value;
}

static int on_disk(int fd) {
  const char *disk = getenv("CHAOS_DISK");
  char link[64], path[4096];
  struct stat found;
  if (!disk || fstat(fd, &found) || !S_ISREG(found.st_mode)) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = 0;
  return strncmp(path, disk, strlen(disk)) == 0;
}

static int inject_fault(int fd) {
  if (!on_disk(fd)) return 0;
  long slow = fault_value("slow");
  if (slow > 0) usleep(slow * 1000);
  if (fault_value("full")) { errno = ENOSPC; return -1; }
  return 0;
}

int clock_gettime(clockid_t id, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int status = real(id, now);
  if (status == 0 && id == CLOCK_REALTIME) now->tv_sec += fault_value("clock");
  return status;
}

ssize_t write(int fd, const void *data, size_t n) {
  static ssize_t (*real)(int, const void *, size_t);
  if (!real) real = dlsym(RTLD_NEXT, "write");
  return inject_fault(fd) ? -1 : real(fd, data, n);
}

ssize_t writev(int fd, const struct iovec *parts, int n) {
  static ssize_t (*real)(int, const struct iovec *, int);
  if (!real) real = dlsym(RTLD_NEXT, "writev");
  return inject_fault(fd) ? -1 : real(fd, parts, n);
}

int fsync(int fd) {
  static int (*real)(int);
  if (!real) real = dlsym(RTLD_NEXT, "fsync");
  return inject_fault(fd) ? -1 : real(fd);
}
