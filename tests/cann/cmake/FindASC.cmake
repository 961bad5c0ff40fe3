# The functions that our emitted CMake files call, for tests alone: each says its name and arguments; a file that it is given must be there.
set(ASC_FOUND TRUE)
foreach(name npu_op_package npu_op_package_add npu_op_code_gen npu_op_library npu_op_kernel_library npu_op_kernel_sources npu_op_device_tiling_library)
    cmake_language(EVAL CODE "
        function(${name})
            message(STATUS \"called ${name} \${ARGN}\")
            foreach(argument IN LISTS ARGN)
                if(argument MATCHES \"^ovsdk_.*/.*cpp$\" AND NOT EXISTS \"\${CMAKE_CURRENT_SOURCE_DIR}/\${argument}\")
                    message(FATAL_ERROR \"no file \${argument}\")
                endif()
            endforeach()
        endfunction()
    ")
endforeach()
