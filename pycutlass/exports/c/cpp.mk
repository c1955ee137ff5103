# Builds and runs the program with nvcc and CUTLASS: make CUTLASS=/path/to/cutlass CUDA=/usr/local/cuda
CUDA = /usr/local/cuda
CC = gcc
CXX = g++
ifeq ($(wildcard $(CUTLASS)/include/cutlass/cutlass.h),)
$(error CUTLASS is '$(CUTLASS)', which has no include/cutlass/cutlass.h: run make CUTLASS=/path/to/cutlass)
endif
KERNELS = $(wildcard kernels/kernel_*.cuh)

run: program
	./program

program: $(KERNELS:.cuh=.cubin) $(KERNELS:.cuh=.so) $(wildcard kernels/*.c kernels/*.h)
	$(CC) -std=gnu11 -O2 -Ikernels -o program kernels/*.c -Wl,-z,noexecstack -lm -ldl -lpthread

%.cubin: %.cuh
	$(CUDA)/bin/nvcc @DEVICE@ -I$(CUTLASS)/include -x cu -o $@ $<

%.so: %.cuh
	$(CXX) @HOST@ -I$(CUTLASS)/include -I$(CUDA)/include -I$(CUDA)/include/cccl -x c++ -o $@ $<

.PHONY: run
