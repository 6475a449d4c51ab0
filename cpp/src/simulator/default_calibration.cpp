// Steps of the demo model on the development machine: `quire simulate --num-threads 1 --calibrate
// quire-demo OUT`, and OUT is what stands here.
#include "simulator/calibration.h"

namespace quire {

const std::string& default_calibration_table() {
  static const std::string table = R"table(
{"machine": "Intel(R) Xeon(R) Processor, 1 of 2 cores", "model": "quire-demo (LlamaForCausalLM, bfloat16 on cpu (amx))", "date": "2026-11-21"}
{"num_tokens": 1, "num_reqs": 1, "context_tokens": 22, "seconds": 0.000601594}
{"num_tokens": 2, "num_reqs": 2, "context_tokens": 43, "seconds": 0.000617167}
{"num_tokens": 4, "num_reqs": 4, "context_tokens": 86, "seconds": 0.000664676}
{"num_tokens": 8, "num_reqs": 8, "context_tokens": 172, "seconds": 0.000777974}
{"num_tokens": 16, "num_reqs": 16, "context_tokens": 344, "seconds": 0.001011927}
{"num_tokens": 32, "num_reqs": 32, "context_tokens": 688, "seconds": 0.001511702}
{"num_tokens": 64, "num_reqs": 64, "context_tokens": 1376, "seconds": 0.002981253}
{"num_tokens": 1, "num_reqs": 1, "context_tokens": 134, "seconds": 0.000633251}
{"num_tokens": 2, "num_reqs": 2, "context_tokens": 267, "seconds": 0.000676971}
{"num_tokens": 4, "num_reqs": 4, "context_tokens": 534, "seconds": 0.000748099}
{"num_tokens": 8, "num_reqs": 8, "context_tokens": 1068, "seconds": 0.000935588}
{"num_tokens": 16, "num_reqs": 16, "context_tokens": 2136, "seconds": 0.001341105}
{"num_tokens": 32, "num_reqs": 32, "context_tokens": 4288, "seconds": 0.002297267}
{"num_tokens": 64, "num_reqs": 64, "context_tokens": 8641, "seconds": 0.006216334}
{"num_tokens": 1, "num_reqs": 1, "context_tokens": 518, "seconds": 0.000713532}
{"num_tokens": 2, "num_reqs": 2, "context_tokens": 1035, "seconds": 0.000831631}
{"num_tokens": 4, "num_reqs": 4, "context_tokens": 2070, "seconds": 0.00106458}
{"num_tokens": 8, "num_reqs": 8, "context_tokens": 4144, "seconds": 0.001573278}
{"num_tokens": 16, "num_reqs": 16, "context_tokens": 8304, "seconds": 0.002949473}
{"num_tokens": 32, "num_reqs": 32, "context_tokens": 16672, "seconds": 0.008479234}
{"num_tokens": 64, "num_reqs": 64, "context_tokens": 33603, "seconds": 0.016522043}
{"num_tokens": 1, "num_reqs": 1, "context_tokens": 1030, "seconds": 0.000799885}
{"num_tokens": 2, "num_reqs": 2, "context_tokens": 2059, "seconds": 0.001012568}
{"num_tokens": 4, "num_reqs": 4, "context_tokens": 4120, "seconds": 0.001501029}
{"num_tokens": 8, "num_reqs": 8, "context_tokens": 8248, "seconds": 0.002642739}
{"num_tokens": 16, "num_reqs": 16, "context_tokens": 16528, "seconds": 0.007998901}
{"num_tokens": 32, "num_reqs": 32, "context_tokens": 33184, "seconds": 0.0157463}
{"num_tokens": 16, "num_reqs": 1, "context_tokens": 16, "seconds": 0.000853846}
{"num_tokens": 24, "num_reqs": 9, "context_tokens": 1056, "seconds": 0.001985474}
{"num_tokens": 48, "num_reqs": 33, "context_tokens": 4192, "seconds": 0.004357199}
{"num_tokens": 64, "num_reqs": 1, "context_tokens": 64, "seconds": 0.001760079}
{"num_tokens": 72, "num_reqs": 9, "context_tokens": 1104, "seconds": 0.003109884}
{"num_tokens": 96, "num_reqs": 33, "context_tokens": 4240, "seconds": 0.005322479}
{"num_tokens": 128, "num_reqs": 1, "context_tokens": 128, "seconds": 0.00322282}
{"num_tokens": 136, "num_reqs": 9, "context_tokens": 1168, "seconds": 0.004424578}
{"num_tokens": 160, "num_reqs": 33, "context_tokens": 4304, "seconds": 0.006841835}
{"num_tokens": 256, "num_reqs": 1, "context_tokens": 256, "seconds": 0.006971158}
{"num_tokens": 264, "num_reqs": 9, "context_tokens": 1296, "seconds": 0.007825932}
{"num_tokens": 288, "num_reqs": 33, "context_tokens": 4432, "seconds": 0.010389733}
{"num_tokens": 512, "num_reqs": 1, "context_tokens": 512, "seconds": 0.015193008}
{"num_tokens": 520, "num_reqs": 9, "context_tokens": 1552, "seconds": 0.016099384}
{"num_tokens": 544, "num_reqs": 33, "context_tokens": 4688, "seconds": 0.018436176}
{"num_tokens": 1024, "num_reqs": 1, "context_tokens": 1024, "seconds": 0.037027078}
{"num_tokens": 1032, "num_reqs": 9, "context_tokens": 2064, "seconds": 0.037664416}
{"num_tokens": 1056, "num_reqs": 33, "context_tokens": 5200, "seconds": 0.040789129}
)table";
  return table;
}

}  // namespace quire
