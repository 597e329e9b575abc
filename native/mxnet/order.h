// The order of calls of one name: as they were pushed, one at a time.
#pragma once

namespace hvd::mxnet {

struct Call;

void take_turn(Call* call);          // when it is pushed
void hand_over_in_turn(Call* call);  // when it may run: now, or when those before it have ended
void hand_over_next(Call* call);     // when it has ended, or will never run; once

void hand_over(Call* call);  // to the core

}  // namespace hvd::mxnet
