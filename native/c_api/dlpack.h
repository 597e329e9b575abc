/* DLTensor as DLPack lays it out (https://dmlc.github.io/dlpack, version 1): a pointer, its device,
 * type and shape. */
#ifndef HVD_DLPACK_H
#define HVD_DLPACK_H

#include <stdint.h>

enum { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3 };
enum {
  kDLInt = 0,
  kDLUInt = 1,
  kDLFloat = 2,
  kDLBfloat = 4,
  kDLComplex = 5,
  kDLBool = 6,
  kDLFloat8_e3m4 = 7,
  kDLFloat8_e4m3 = 8,
  kDLFloat8_e4m3b11fnuz = 9,
  kDLFloat8_e4m3fn = 10,
  kDLFloat8_e4m3fnuz = 11,
  kDLFloat8_e5m2 = 12,
  kDLFloat8_e5m2fnuz = 13,
  kDLFloat8_e8m0fnu = 14
};

typedef struct {
  int32_t device_type;
  int32_t device_id;
} DLDevice;

typedef struct {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} DLDataType;

typedef struct {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides; /* NULL: contiguous, row by row */
  uint64_t byte_offset;
} DLTensor;

/* What a framework's tensors give without a call into Python: from version 1.3 on, in the attribute
 * __dlpack_c_exchange_api__ of their type. */
typedef struct DLPackExchangeAPI {
  struct {
    struct {
      uint32_t major, minor;
    } version;
    struct DLPackExchangeAPI* before;
  } header;
  void (*allocate)(void);
  void (*managed_from)(void);
  void (*managed_to)(void);
  int (*tensor_from)(void* object, DLTensor* tensor); /* points into the object; 0: it did */
  void (*current_stream)(void);
} DLPackExchangeAPI;

#endif
