# Makes, for `cmake --install`, what is not built: manual pages from --help, the public headers, the
# pkg-config file.
file(REMOVE_RECURSE ${OUT})

# Help as roff: as it stands, in lines of its own. \1 becomes the text of one --help.
function(help ret_text)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "\\" "\\e" text "${text}")
  string(REPLACE "-" "\\-" text "${text}")
  string(REGEX REPLACE "(^|\n)([.'])" "\\1\\\\&\\2" text "${text}")
  set(${ret_text} ".nf\n${text}.fi\n" PARENT_SCOPE)
endfunction()

# page(PROGRAM WHAT [COMMAND...]): the last are commands whose help follows the program's own.
function(page program what)
  string(TOUPPER ${program} title)
  help(text ${BIN}/${program} --help)
  set(page ".TH ${title} 1 \"\" \"flotilla ${VERSION}\"\n.SH NAME\n${program} \\- ${what}\n.SH USAGE\n${text}")
  foreach(command ${ARGN})
    help(text ${BIN}/${program} ${command} --help)
    string(TOUPPER ${command} title)
    string(APPEND page ".SH ${title}\n${text}")
  endforeach()
  string(APPEND page ".SH EXIT STATUS\n0: success; 1: failed; 2: usage or configuration error.\n")
  file(WRITE ${OUT}/man1/${program}.1 "${page}")
endfunction()

# The commands are those that the help of `flotilla` lists.
execute_process(COMMAND ${BIN}/flotilla --help OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "\n  [a-z]+" commands "${text}")
string(REGEX REPLACE "\n  " "" commands "${commands}")
page(flotilla "serve a large language model from several machines, and talk to it" ${commands})
page(flotilla-coordinator "takes requests and leads the workers of a flotilla cluster")
page(flotilla-worker "computes a part of the model of a flotilla cluster")

# Inside the tree includes name their layer; installed, the headers lie beside each other.
foreach(header common/client/client.h common/base/err.h common/base/sampling.h proto/api.h)
  file(READ ${SOURCE}/${header} text)
  string(REGEX REPLACE "#include \"[a-z/]*/([a-z_]+[.]h)\"" "#include <flotilla/\\1>" text "${text}")
  get_filename_component(name ${header} NAME)
  file(WRITE ${OUT}/flotilla/${name} "${text}")
endforeach()

configure_file(${SOURCE}/deploy/flotilla-client.pc.in ${OUT}/flotilla-client.pc @ONLY)
