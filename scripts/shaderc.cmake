# Builds shaderc (glslang and SPIRV-Tools, about 400 C++ files) at -O1 instead of -O3: half the compile
# time of a first `make demo` or `make test`, for shader compiles that are milliseconds slower and cached.
# Programs that depend on the tallow crates from elsewhere do not read this file and get shaderc's own -O3.
# (shaderc-sys fixes the build type to Release, and cargo's opt-level does not reach CMake.)
set(CMAKE_C_FLAGS_RELEASE "-O1 -DNDEBUG" CACHE STRING "")
set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG" CACHE STRING "")
