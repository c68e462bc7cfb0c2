# Writes the program's version, with the commit that is built, into a source file; untouched where
# nothing changed. Outside a checkout there is no commit to name.
# cmake -DSOURCE=... -DVERSION=... -DOUT=... -P version.cmake
set(text "${VERSION}")
if(EXISTS "${SOURCE}/.git")
  execute_process(COMMAND git describe --always --dirty --exclude=* WORKING_DIRECTORY "${SOURCE}"
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    string(APPEND text " (${commit})")
  endif()
endif()
set(code "#include \"common/base/version.h\"\n\nconst char version_text[] = \"${text}\";\n")
set(before "")
if(EXISTS "${OUT}")
  file(READ "${OUT}" before)
endif()
if(NOT before STREQUAL code)
  file(WRITE "${OUT}" "${code}")
endif()
