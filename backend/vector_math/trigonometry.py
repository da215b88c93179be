"""Circular functions and their inverses."""

from __future__ import annotations

import math

from relayc.backend.vector_math.builder import Builder
from relayc.te.tir import Call, Cast, Max, Min, PrimExpr, Select, Var
from relayc.te.tir.ops import all as all_of, any as any_of

# (f(x) / x - 1) / x^2 in x^2: atan to 1, asin to 1/2, sin to pi/4; cos: (cos(x) - 1 + x^2/2) / x^4
_ATAN = {
    32: (-0.33333322405815125, 0.19998681545257568, -0.14257045090198517, 0.1086575910449028, -0.08009681850671768,
         0.04891432076692581, -0.02002674713730812, 0.003866738872602582),
    64: (-0.3333333333333302, 0.19999999999944268, -0.14285714282181675, 0.11111110995908832, -0.09090906812665642,
         0.07692277677819165, -0.06666386806559987, 0.058804272191223445, -0.052530783065543436, 0.047208494315127504,
         -0.04215367849911121, 0.03656514353516968, -0.02978335206593911, 0.021838074673802617, -0.013763346705652345,
         0.007099985521128468, -0.0028355190990207095, 0.000813964717957847, -0.00014841831625624026,
         1.2851805242397334e-05),
}  # fmt: skip
_ASIN = {
    32: (0.16666673123836517, 0.07498855143785477, 0.045001380145549774, 0.026554541662335396, 0.03808502480387688),
    64: (0.16666666666665414, 0.07500000000336159, 0.044642856828899534, 0.03038195911733698, 0.022371758446531893,
         0.017359699724441763, 0.013885277355233849, 0.012168981705047146, 0.006528796930095426, 0.019526441096043522,
         -0.016221994703234138, 0.031911100966277514),
}  # fmt: skip
# float64: (atan(x) / x - 1) / x^2 in x^2 to 0.1, (asin(x) / x - 1) / x^2 to 0.069
_ATAN_OF_PIECE = (-0.33333333333316634, 0.19999999975806126, -0.14285702901886096, 0.1110877156397284,
                  -0.08872105565917601)  # fmt: skip
_ASIN_OF_PIECE = (0.16666666666666774, 0.0749999999968066, 0.04464286021882518, 0.030380652214245147,
                  0.0226182720751834)  # fmt: skip
# (atan(x) / x - 1) / x^2 in x^2 to tan(pi/8)
_ATAN_OF_EIGHTH = (-0.333333333333332, 0.1999999999995377, -0.14285714280211828, 0.11111110784102961,
                   -0.09090897773192917, 0.07692060440184413, -0.06663106065530557, 0.05847900102224917,
                   -0.05039336289502541, 0.03806494177243558, -0.017907179819558725)  # fmt: skip
_TANGENTS = (2.414213568955847, 3.434057836045184, 4.807987251401025, 6.860057114175755,
             9.604121968698905, 2.0**100, 0.0, 0.10934861936618684, 0.15610118724222527,
             0.21854631352898354, 0.3113914956583984, 0.43606951311975467, 0.6180339904311319,
             0.8672954028277855, 1.2198039040509525, 1.7231796815333347)  # fmt: skip
_ANGLES = (1.1780972460601942, 1.287431718501165, 1.3657326569638513, 1.426044491196911,
           1.4670482136734138, 1.5707963267948966, 0.0, 0.10891588813964395, 0.15485147240843808,
           0.2151633065821471, 0.3018746669517297, 0.41120914018386223, 0.5535743601135998,
           0.7144496367418204, 0.8840959438579343, 1.0449712213281397)  # fmt: skip
_FIRST_TANGENT, _LAST_TANGENT, _STEEPEST = 2.0**-4, 12.0, 2.0**60
"""Angles in the middle of half an octave of tangents each, from 3/32 to 12, or 0 below and pi/2 above that, chosen so
that they are hardly rounded: from tangents of 2 to the last, then from 0 to 2, as the bits of tangents count half
octaves. A reciprocal of `_STEEPEST` or above does not matter."""
_SINES = (0.7071068291344235, 0.7749184594597613, 0.8353828727297808, 0.8881415224909204,
          0.9325275381037185, 0.9674288647192195, 0.9910005695928251, 1.0, 0.0, 0.0, 0.1338577168919473,
          0.2531431289890626, 0.36109894886627114, 0.45957009007513017, 0.5496685925380924,
          0.6320613061533)  # fmt: skip
_COSINES = (0.7071067332386684, 0.6320612163299614, 0.5496684964137373, 0.45957005562537456,
            0.3610988655177662, 0.25314302618891554, 0.13385765225304155, 0.0, 0.0, 1.0,
            0.9910005608618369, 0.9674288378199333, 0.9325275058290099, 0.8881415046648461,
            0.835382809481493, 0.7749183861954653)  # fmt: skip
_ARCS = (0.7853982312059871, 0.8865860774490175, 0.9888289690825365, 1.0932852833836182,
         1.2013503285443048, 1.3148686009650647, 1.4365356759227592, 1.5707963267948966, 0.0, 0.0,
         0.1342607160980394, 0.25592783209102815, 0.3694460876297286, 0.47751108219986677,
         0.5819674727785914, 0.6842103652591625)  # fmt: skip
_COMPLEMENTS = (0.7853980955889096, 0.6842102493458792, 0.5819673577123602, 0.4775110434112784,
                0.3694459982505918, 0.25592772582983186, 0.1342606508721374, 0.0, 0.0,
                1.5707963267948966, 1.4365356106968572, 1.3148684947038685, 1.201350239165168,
                1.0932852445950298, 0.9888288540163053, 0.8865859615357342)  # fmt: skip
"""Angles whose sines less their cosines are about n/7, chosen so that they are hardly rounded, and pi/2 minus them:
for n from 0 to 7, none, and for n from -7 to -1."""
_SIN = {
    32: (-0.166666641831398, 0.008332747034728527, -0.00019587638962548226),
    64: (-0.1666666666666663, 0.008333333333322118, -0.00019841269829589558, 2.7557313621376087e-06,
         -2.505074775989765e-08, 1.589622993206412e-10),
}  # fmt: skip
_COS = {
    32: (0.0416666641831398, -0.0013888301327824593, 2.4547689463361166e-05),
    64: (0.0416666666666666, -0.001388888888887414, 2.4801587289492e-05, -2.755731435528728e-07, 2.087572369022855e-09,
         -1.13596701553977e-11),
}  # fmt: skip
_HALF_PI_PARTS = {
    32: (1.57079637050628662109375, -4.371138828673793e-08, -1.7151245100058819e-15),
    64: (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33),
}
"""pi/2 as an unevaluated sum of three values, by the bits of their type."""
_HALF_PI_LOW = 6.123233995736766e-17  # pi/2 - math.pi / 2
_WIDE_PARTS = ((math.pi / 2, _HALF_PI_LOW), (1.5707963109016418, 1.5893254712295857e-08, _HALF_PI_LOW))
"""pi/2 as an unevaluated sum of float64 values: for multiples rounded once, and with few enough bits for exact
multiples."""
_REACH, _WIDE_REACH = {32: 2.0**17, 64: 2.0**30}, (2.0**48, 2.0**25)
"""Largest arguments of the reduction by multiples of pi/2 in their own type, and of float32 values in float64 with and
without fused multiply-add."""


def _reduced(b: Builder, x: PrimExpr) -> tuple[PrimExpr, Var]:
    """(n, r) with x = n pi/2 + r, |x| below `_REACH`; n is in the low bits. Requires fused multiply-add."""
    t = b.let(b.fma(x, 2 / math.pi, b.format.magic), "t")
    n, r = b.let(t - b.const(b.format.magic), "n"), x
    for part in _HALF_PI_PARTS[b.of.bits]:
        r = b.fma(n, -part, r)
    return b.bits(t), b.let(r, "r")


def _reduced_in_float64(b: Builder, x: PrimExpr) -> tuple[PrimExpr, Var]:
    """(n, r) with x = n pi/2 + r for |x| < `_WIDE_REACH`, reduced in float64; n is in the low bits."""
    parts = _WIDE_PARTS[not b.has.fused]
    w = b.wide()
    wide = w.let(Cast(w.of, x), "wide")
    t = w.let(w.fma(wide, 2 / math.pi, w.format.magic), "t")
    n = w.let(t - w.const(w.format.magic), "n")
    r: PrimExpr = wide
    for part in parts:
        r = w.fma(n, -part, r)
    return Cast(b.words, w.bits(t)), b.let(Cast(b.of, r), "r")


def _sine_cosine(b: Builder, r: Var) -> tuple[Var, Var]:
    """The sine and the cosine of a reduced r."""
    square = b.let(r * r, "square")
    sine = b.let(b.fma(r * square, b.polynomial(square, _SIN[b.of.bits]), r), "sine")
    tail = b.fma(square, b.polynomial(square, _COS[b.of.bits]), -0.5)
    return sine, b.let(b.fma(square, tail, 1.0), "cosine")


def sin(b: Builder, x: PrimExpr) -> PrimExpr:
    return _by_reach(b, "sin", x)


def cos(b: Builder, x: PrimExpr) -> PrimExpr:
    return _by_reach(b, "cos", x)


def tan(b: Builder, x: PrimExpr) -> PrimExpr:
    return _by_reach(b, "tan", x)


def _by_reach(b: Builder, op: str, x: PrimExpr) -> PrimExpr:
    """The function at any argument: vectors with lanes beyond the largest reducible argument call the C library."""
    beyond = Call(b.of, op, (x,))
    if b.of.bits == 64 and not b.has.fused:
        return beyond
    size = b.magnitude(x)
    if b.of.bits == 32:
        far = b.inner() if b.has.fused else b
        wide = _of_reduced(far, op, x, *_reduced_in_float64(far, size))
        beyond = far.likely_branch(b.rank(size), _WIDE_REACH[not b.has.fused], wide, beyond)
        if not b.has.fused:
            return beyond
        beyond = far.close(beyond)
    return b.likely_branch(b.rank(size), _REACH[b.of.bits], _of_reduced(b, op, x, *_reduced(b, size)), beyond)


def _of_reduced(b: Builder, op: str, x: PrimExpr, n: PrimExpr, r: Var) -> PrimExpr:
    """The function of x with |x| = n pi/2 + r. Odd functions take the sign of x, also that of -0."""
    sine, cosine = _sine_cosine(b, r)
    if op == "tan":
        odd = b.let(Call(b.words, "bitwise_and", (n, b.word(1))) != b.word(0), "odd")
        return b.let(b.negated_by_sign_of(Select(odd, -cosine, sine) / Select(odd, sine, cosine), x), op)
    quarter = b.let(n + b.word(1) if op == "cos" else n, "quarter")
    odd = Call(b.words, "bitwise_and", (quarter, b.word(1))) != b.word(0)
    sign = Call(b.words, "shift_left", (Call(b.words, "bitwise_and", (quarter, b.word(2))), b.word(b.of.bits - 2)))
    result = b.from_bits(Call(b.words, "bitwise_xor", (b.bits(Select(odd, cosine, sine)), sign)))
    return b.let(result if op == "cos" else b.negated_by_sign_of(result, x), op)


def asin(b: Builder, x: PrimExpr) -> PrimExpr:
    if b.has_wide_lookup():
        index, arc = _arc_by_pieces(b, b.magnitude(x))
        return b.with_sign_of(b.lookup_float(index, _ARCS) + arc, x)
    arc, is_near = _arc(b, x)
    return b.with_sign_of(Select(is_near, arc, b.fma(arc, -2.0, math.pi / 2)), x)


def acos(b: Builder, x: PrimExpr) -> PrimExpr:
    if b.has_wide_lookup():
        index, arc = _arc_by_pieces(b, b.magnitude(x))
        arc = b.let(b.lookup_float(index, _COMPLEMENTS) - arc, "arc")
        return Select(x < b.const(0.0), b.const(math.pi) - arc, arc)
    arc, is_near = _arc(b, x)
    inner = b.const(math.pi / 2) - b.with_sign_of(arc, x)
    outer = Select(x < b.const(0.0), b.fma(arc, -2.0, math.pi), arc * b.const(2.0))
    return Select(is_near, inner, outer)


def _arc(b: Builder, x: PrimExpr) -> tuple[Var, Var]:
    """asin(|x|) and whether |x| <= 1/2, else asin(sqrt((1 - |x|) / 2))."""
    size = b.magnitude(x)
    is_near = b.let(size <= b.const(0.5), "near")
    rest = b.unary("sqrt", (b.const(1.0) - size) * b.const(0.5))
    arc = b.let(Select(is_near, size, rest), "arc")
    return b.let(b.odd(arc, _ASIN[b.of.bits]), "value"), is_near


def _arc_by_pieces(b: Builder, sine: Var) -> tuple[PrimExpr, PrimExpr]:
    """(i, asin(sine) - angle i of `_ARCS`) for 0 <= sine <= 1, by the sine of that difference; NaN for larger ones."""
    cosine = b.let(b.root(b.let(b.fma(-sine, sine, 1.0), "square")), "cosine")
    index = b.let(b.bits(b.fma(sine - cosine, 7.0, b.format.magic)), "index")
    part = cosine * b.lookup_float(index, _SINES)
    return index, b.odd(b.let(b.fma(sine, b.lookup_float(index, _COSINES), -part), "part"), _ASIN_OF_PIECE)


def atan(b: Builder, x: PrimExpr) -> PrimExpr:
    size = b.magnitude(x)
    if b.of.bits == 64:
        return b.with_sign_of(_angle_by_pieces(b, b.let(Min(size, b.const(_STEEPEST)), "size")), x)
    steep = b.let(size > b.const(1.0), "steep")
    t = b.let(Select(steep, b.const(1.0) / size, size), "t")
    angle = b.let(b.odd(t, _ATAN[b.of.bits]), "angle")
    return b.with_sign_of(Select(steep, b.const(math.pi / 2) - angle, angle), x)


def _angle_by_pieces(b: Builder, tangent: Var) -> PrimExpr:
    """atan(tangent) up to `_STEEPEST`, by the tangent of its difference from an angle: one of `_ANGLES`, or 0, pi/4 or
    pi/2 without a table."""
    if b.has_wide_lookup():
        bits = b.bits(b.clamp(tangent, _FIRST_TANGENT, _LAST_TANGENT))
        index = b.let(Call(b.words, "shift_right", (bits, b.word(b.format.mantissa - 1))), "index")
        middle, angle, series = b.lookup_float(index, _TANGENTS), b.lookup_float(index, _ANGLES), _ATAN_OF_PIECE
    else:
        eighth = math.tan(math.pi / 8)
        flat, steep = b.let(tangent < b.const(eighth), "flat"), b.let(tangent > b.const(1 / eighth), "steep")
        middle, angle = [
            Select(steep, b.const(of_steep), Select(flat, b.const(0.0), b.const(of_middle)))
            for of_middle, of_steep in ((1.0, 2.0**100), (math.pi / 4, math.pi / 2))
        ]
        series = _ATAN_OF_EIGHTH
    middle = b.let(middle, "middle")
    t = b.let((tangent - middle) / b.fma(tangent, middle, 1.0), "t")
    return angle + b.odd(t, series)


def atan2(b: Builder, y: PrimExpr, x: PrimExpr) -> PrimExpr:
    """The angle of (x, y), in (-pi, pi]."""
    width, height = b.let(b.unary("fabs", x), "width"), b.let(b.unary("fabs", y), "height")
    steep = b.let(height > width, "steep")
    small, large = b.let(Min(width, height), "small"), b.let(Max(width, height), "large")
    flat = any_of(b.is_zero(large), all_of(small == b.const(math.inf), large == b.const(math.inf)))
    ratio = Select(flat, Select(b.is_zero(large), b.const(0.0), b.const(1.0)), small / large)
    angle = b.let(b.odd(b.let(ratio, "ratio"), _ATAN[b.of.bits]), "angle")
    angle = b.let(Select(steep, b.const(math.pi / 2) - angle, angle), "angle")
    behind = b.bits(x) < b.word(0)
    return b.with_sign_of(Select(behind, b.const(math.pi) - angle, angle), y)
