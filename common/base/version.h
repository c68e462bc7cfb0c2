/* What --version says. Linked into programs only: it changes with each commit. */
#ifndef FLOTILLA_BASE_VERSION_H
#define FLOTILLA_BASE_VERSION_H

/* "0.1.0 (089b0b0)", "-dirty" behind the commit where files were changed since; outside a git
 * checkout the number alone. Written by deploy/version.cmake. */
extern const char version_text[];

#endif
