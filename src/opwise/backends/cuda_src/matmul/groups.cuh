// Which data type's kernels are compiled: MATMUL_GROUP, if defined as one of these numbers, names one alone.
#pragma once
#define MATMUL_FLOAT32 1
#define MATMUL_TFLOAT32 2
#define MATMUL_FLOAT16 3
#define MATMUL_BFLOAT16 4
#ifndef MATMUL_GROUP
#define MATMUL_GROUP 0
#endif
