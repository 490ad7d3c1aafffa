import unittest

from tally import report


class Summary(unittest.TestCase):
    def test_a_bill_is_split_among_the_names(self):
        self.assertEqual(
            report.summary("10.5", ["ada", "ben", "cleo"]),
            "ada owes 3.50\nben owes 3.50\ncleo owes 3.50",
        )

    def test_the_first_ones_pay_the_odd_cents(self):
        self.assertEqual(report.summary("10", ["ada", "ben", "cleo"]).splitlines()[0], "ada owes 3.34")
