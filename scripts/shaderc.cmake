# Builds shaderc (glslang and SPIRV-Tools) at -O1 instead of -O3, and of its libraries only what the static one consists
# of: a third of the compile time of a first `make demo` or `make test`, for shader compiles that are milliseconds slower
# and cached. Programs that depend on the tallow crates from elsewhere do not read this file and get shaderc's own choice.
# (shaderc-sys fixes the build type to Release, and cargo's opt-level does not reach CMake.)
set(CMAKE_C_FLAGS_RELEASE "-O1 -DNDEBUG" CACHE STRING "")
set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG" CACHE STRING "")

set(SHADERC_SKIP_EXAMPLES ON CACHE BOOL "")

# SPIRV-Tools compiles all its sources twice, the second time for a shared library, and has a library for spirv-reduce.
# Both are installed, so they must be there; nothing is linked with them, so they may be empty.
function(leave_libraries_empty)
    foreach(library SPIRV-Tools-shared SPIRV-Tools-reduce)
        if(TARGET ${library})
            file(WRITE "${CMAKE_BINARY_DIR}/empty.cpp" "")
            set_property(TARGET ${library} PROPERTY SOURCES "${CMAKE_BINARY_DIR}/empty.cpp")
        endif()
    endforeach()
endfunction()

# Parsing headers is most of the compile time of SPIRV-Tools. It has headers to precompile, which it uses with MSVC only.
function(precompile_headers)
    foreach(library_and_header SPIRV-Tools-static:pch_source.h SPIRV-Tools-opt:opt/pch_source_opt.h)
        string(REPLACE ":" ";" parts ${library_and_header})
        list(GET parts 0 library)
        list(GET parts 1 header)
        set(header "${spirv-tools_SOURCE_DIR}/source/${header}")
        if(TARGET ${library} AND EXISTS "${header}")
            target_precompile_headers(${library} PRIVATE "${header}")
        endif()
    endforeach()
endfunction()

if(CMAKE_VERSION VERSION_GREATER_EQUAL 3.19)
    cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL leave_libraries_empty)
    cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL precompile_headers)
endif()
