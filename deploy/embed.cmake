# Writes a file as a C array of bytes: const unsigned char NAME[] and const size_t NAME_bytes.
# cmake -DIN=... -DOUT=... -DNAME=... -DHEADER=... -P embed.cmake
file(READ "${IN}" hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
file(WRITE "${OUT}" "#include \"${HEADER}\"\n\nconst unsigned char ${NAME}[] = {\n${bytes}};\nconst size_t ${NAME}_bytes = sizeof ${NAME};\n")
