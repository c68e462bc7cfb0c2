# What `cmake --install` puts where: the programs and their manual pages, and the client library
# with its headers and its pkg-config file.
include(GNUInstallDirs)

# The library is a shared one, for three reasons: it exports the client's functions alone, where an
# archive would also add names like mem_free and net_open to the program; a program needs to link
# nothing else; and it can be mended without building the program again. The soname changes with the
# structures of its headers.
add_library(flotilla-client SHARED $<TARGET_OBJECTS:client>)
target_link_libraries(flotilla-client PRIVATE io proto base)
target_link_options(flotilla-client PRIVATE
  LINKER:--version-script=${CMAKE_SOURCE_DIR}/common/client/client.map LINKER:--as-needed)
set_target_properties(flotilla-client PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION 0
  LINKER_LANGUAGE C LINK_DEPENDS ${CMAKE_SOURCE_DIR}/common/client/client.map
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)

set(PREPARED ${CMAKE_BINARY_DIR}/install)
install(CODE "execute_process(COMMAND \"${CMAKE_COMMAND}\" -DSOURCE=${CMAKE_SOURCE_DIR} -DOUT=${PREPARED}
  -DBIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY} -DVERSION=${PROJECT_VERSION} -DLIBDIR=${CMAKE_INSTALL_LIBDIR}
  -DINCLUDEDIR=${CMAKE_INSTALL_INCLUDEDIR} -DCMAKE_INSTALL_PREFIX=\${CMAKE_INSTALL_PREFIX}
  -P ${CMAKE_SOURCE_DIR}/deploy/prepare.cmake COMMAND_ERROR_IS_FATAL ANY)")
install(TARGETS flotilla flotilla-coordinator flotilla-worker flotilla-client)
install(DIRECTORY ${PREPARED}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR})
install(DIRECTORY ${PREPARED}/flotilla DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${PREPARED}/flotilla-client.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES deploy/cluster.example.yaml deploy/example.c LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
