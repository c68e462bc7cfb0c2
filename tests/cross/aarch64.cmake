# For AArch64 with Debian's cross compiler, against the libraries that tests/cross/sysroot unpacks:
#   root=$(tests/cross/sysroot) && cmake -B build-aarch64 -DCMAKE_TOOLCHAIN_FILE=tests/cross/aarch64.cmake -DCROSS_ROOT=$root
# Its programs run with `qemu-aarch64 -L $root`.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CROSS_ROOT "" CACHE PATH "what tests/cross/sysroot printed")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES CROSS_ROOT)
set(CMAKE_SYSROOT ${CROSS_ROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${CROSS_ROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${CROSS_ROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${CROSS_ROOT}/usr/share/pkgconfig)
