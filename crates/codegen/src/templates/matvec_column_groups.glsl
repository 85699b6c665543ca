// ${ who } takes a run of ${ columns } columns.
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
