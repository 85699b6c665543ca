"""All architectures, in the order of the files."""
import encoders
import experts
import gated
import layernorm
import recurrent

FIXTURES = gated.FIXTURES + layernorm.FIXTURES + experts.FIXTURES + recurrent.FIXTURES + encoders.FIXTURES
