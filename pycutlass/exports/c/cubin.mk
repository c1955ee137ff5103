# Builds and runs the program: all it takes is a C compiler.
CC = gcc

run: program
	./program

program: kernels/*.c kernels/*.h kernels/*.cubin kernels/*.so
	$(CC) -std=gnu11 -O2 -Wall -Wextra -Ikernels -o program kernels/*.c -Wl,-z,noexecstack -lm -ldl -lpthread

.PHONY: run
