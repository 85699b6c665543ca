// ${ who } reduces one group of ${ columns } columns at a time.
${ each } {
    const uint m = ${ m }, run = ${ run };
//% if inside
    if (${ inside }) {
        ${ lines | indent(8) }
    }
//% else
    ${ lines | indent(4) }
//% endif
}
barrier();
