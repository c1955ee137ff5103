// What is said where something fails.
#include <stdarg.h>
#include <stdio.h>

#include "driver.h"

static _Thread_local char message[1024];

int refuse(int code, char const* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  return code;
}

char const* kernel_message(void) { return message; }
