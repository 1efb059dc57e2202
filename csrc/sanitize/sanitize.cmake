# The test program: the engine's own objects, random cases, a reference in plain double precision.
#
# GCC turns OpenMP pragmas into a few calls; openmp.cpp answers them with std::thread. The real libgomp is not compiled
# with the sanitizer, which would take every hand-over inside it for a race.
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  message(FATAL_ERROR "The sanitizer build needs g++: openmp.cpp stands in for its OpenMP library only")
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O1 -g1")
find_package(Threads REQUIRED)
set(sanitizer -fsanitize=${EF_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
# What AddressSanitizer finds as well, and which triples the time to compile.
list(APPEND sanitizer -fno-sanitize=null,object-size,pointer-overflow)
target_compile_options(engine PUBLIC ${sanitizer} -fopenmp)

add_executable(ef_sanitize
  sanitize/fuzz_attention.cpp
  sanitize/fuzz_chain.cpp
  sanitize/fuzz_encoder.cpp
  sanitize/fuzz_matmul.cpp
  sanitize/fuzz_mlp.cpp
  sanitize/fuzz_packs.cpp
  sanitize/fuzz_rows.cpp
  sanitize/main.cpp
  sanitize/openmp.cpp
  sanitize/reference.cpp)
target_link_libraries(ef_sanitize PRIVATE engine Threads::Threads)
target_link_options(ef_sanitize PRIVATE ${sanitizer})
